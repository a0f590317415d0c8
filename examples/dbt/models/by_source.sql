SELECT src, count(*) AS n, sum(len)::BIGINT AS bytes FROM {{ source('traffic', 'packets') }} GROUP BY src
