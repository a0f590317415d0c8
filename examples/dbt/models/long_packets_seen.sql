SELECT count(*) AS n FROM {{ source('traffic', 'long_packets') }}
