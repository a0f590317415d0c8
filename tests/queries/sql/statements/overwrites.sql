COPY (SELECT 1) TO '{inside}/evil.csv'
COPY (SELECT 1) TO '{inside}/segment.parquet'
COPY packets TO '{inside}/segment.parquet' (FORMAT parquet)
COPY packets TO '{inside}' (FORMAT parquet, PARTITION_BY src, OVERWRITE true)
ATTACH '{inside}/evil.db'
EXPORT DATABASE '{inside}'
SELECT * FROM read_parquet('{inside}/segment.parquet')
SELECT * FROM '{inside}/segment.parquet'
COPY (SELECT 1) TO '/dev/stdout'
SET disabled_filesystems = ''
