SELECT * FROM read_csv('/etc/passwd')
SELECT * FROM READ_CSV('/etc/passwd')
SELECT * FROM "read_csv"('/etc/passwd')
SELECT * FROM main.read_csv('/etc/passwd')
SELECT * FROM system.main.read_csv('/etc/passwd')
SELECT * FROM read_csv_auto('/etc/passwd')
SELECT * FROM read_text('/etc/passwd')
SELECT * FROM read_blob('/etc/passwd')
SELECT * FROM read_json('/etc/passwd')
SELECT * FROM read_ndjson_objects('/etc/passwd')
SELECT * FROM read_parquet('/tmp/x.parquet')
SELECT * FROM parquet_scan('/tmp/x.parquet')
SELECT * FROM parquet_metadata('/tmp/x.parquet')
SELECT * FROM parquet_kv_metadata('/tmp/x.parquet')
SELECT * FROM read_duckdb('/tmp/x.db')
SELECT * FROM sniff_csv('/etc/passwd')
SELECT * FROM glob('/*')
SELECT * FROM '/etc/passwd'
SELECT * FROM '/tmp/x.csv'
SELECT * FROM "/tmp/x.parquet"
SELECT * FROM 'http://localhost/x.csv'
SELECT * FROM 's3://bucket/x.parquet'
SELECT * FROM '../secrets.csv'
SELECT * FROM "packets/../../secrets"
SELECT * FROM `/etc/passwd`
FROM '/etc/passwd'
TABLE '/etc/passwd'
DESCRIBE '/tmp/x.csv'
SUMMARIZE '/tmp/x.csv'
DESCRIBE SELECT * FROM read_csv('/etc/passwd')
SELECT * FROM packets, '/etc/passwd'
SELECT * FROM packets WHERE src IN (SELECT content FROM read_text('/etc/passwd'))
SELECT * FROM packets WHERE EXISTS (FROM '/etc/passwd')
SELECT (SELECT content FROM read_text('/etc/passwd'))
SELECT (SELECT max(x) FROM (SELECT * FROM (FROM read_text('/etc/passwd')) q(x)))
SELECT * FROM packets ORDER BY (SELECT content FROM read_text('/etc/passwd'))
SELECT * FROM packets LIMIT (SELECT count(*) FROM glob('/*'))
SELECT * FROM packets GROUP BY ALL HAVING (SELECT count(*) FROM glob('/*')) > 0
SELECT sum(len) FILTER (WHERE src IN (SELECT 1 FROM glob('/*'))) FROM packets
SELECT sum(len) OVER (PARTITION BY (SELECT 1 FROM glob('/*'))) FROM packets
SELECT sum(len) OVER w FROM packets WINDOW w AS (ORDER BY (SELECT 1 FROM glob('/*')))
SELECT * FROM packets QUALIFY (SELECT true FROM glob('/*'))
SELECT list_transform([1], lambda x: (SELECT count(*) FROM glob('/*')))
SELECT [x FOR x IN (SELECT [1] FROM glob('/*'))]
SELECT CASE WHEN true THEN (SELECT 1 FROM glob('/*')) END
SELECT * FROM packets JOIN leases ON (SELECT true FROM glob('/*'))
SELECT * FROM packets, LATERAL (SELECT * FROM read_text('/etc/passwd'))
SELECT * REPLACE ((SELECT 1 FROM glob('/*')) AS src) FROM packets
SELECT COLUMNS(c -> c IN (SELECT 'src' FROM glob('/*'))) FROM packets
VALUES ((SELECT content FROM read_text('/etc/passwd')))
SELECT * FROM (VALUES ((SELECT content FROM read_text('/etc/passwd'))))
SELECT * FROM unnest((SELECT list(content) FROM read_text('/etc/passwd')))
SELECT * FROM range((SELECT count(*) FROM glob('/*')))
WITH x AS (SELECT * FROM read_text('/etc/passwd')) SELECT * FROM x
WITH x AS (SELECT 1), y AS MATERIALIZED (FROM '/etc/passwd') SELECT * FROM x
WITH RECURSIVE x AS (SELECT 1 UNION ALL SELECT 2 FROM glob('/*')) SELECT * FROM x
WITH "/etc/passwd" AS (FROM '/etc/passwd') FROM '/etc/passwd'
WITH x AS (INSERT INTO packets VALUES (1) RETURNING *) SELECT * FROM x
WITH x AS (DELETE FROM packets RETURNING *) SELECT * FROM x
WITH x AS (UPDATE packets SET src = 1 RETURNING *) SELECT * FROM x
WITH a AS (WITH x AS (DELETE FROM packets RETURNING *) FROM x) SELECT * FROM a
SELECT * FROM (WITH x AS (INSERT INTO packets SELECT 1 RETURNING *) FROM x)
WITH x AS MATERIALIZED (INSERT INTO packets PIVOT packets ON src USING sum(len)) FROM packets
SELECT 1 UNION ALL SELECT * FROM '/etc/passwd'
PIVOT read_csv('/etc/passwd') ON x USING count(*)
PIVOT '/etc/passwd' ON x USING count(*)
PIVOT (FROM read_text('/etc/passwd')) ON filename USING count(*)
PIVOT packets ON (SELECT content FROM read_text('/etc/passwd')) USING count(*)
PIVOT packets ON src IN (SELECT size FROM read_blob('/etc/passwd')) USING count(*)
PIVOT packets ON src, len IN (SELECT size FROM read_blob('/etc/passwd')) USING count(*)
PIVOT packets ON getenv('HOME') USING count(*)
PIVOT packets ON src USING max(getenv('HOME'))
PIVOT packets ON src USING count(*) ORDER BY getenv('HOME')
PIVOT packets JOIN '/etc/passwd' ON true ON src USING count(*)
PIVOT packets JOIN leases ON (SELECT true FROM glob('/*')) ON src USING count(*)
PIVOT packets ON src USING count(*) UNION ALL PIVOT '/etc/passwd' ON x USING count(*)
WITH x AS (PIVOT read_text('/etc/passwd') ON filename USING count(*)) FROM x
SELECT * FROM (PIVOT packets ON src USING count(*)), read_text('/etc/passwd')
FROM packets PIVOT (max((SELECT content FROM read_text('/etc/passwd'))) FOR src IN (1))
FROM '/etc/passwd' UNPIVOT (v FOR n IN (a, b))
UNPIVOT '/etc/passwd' ON a, b
SELECT * FROM query('SELECT * FROM read_text(''/etc/passwd'')')
SELECT * FROM query_table('/etc/passwd')
SELECT * FROM query_table(['packets', '/etc/passwd'])
SELECT * FROM histogram('/etc/passwd', x)
SELECT * FROM json_execute_serialized_sql('{}')
SELECT json_serialize_plan('SELECT * FROM read_text(''/etc/passwd'')')
SELECT getenv('HOME')
SELECT GetEnv('HOME')
SELECT "getenv"('HOME')
SELECT system.main.getenv('HOME')
SELECT 'HOME'.getenv()
SELECT list_transform(['HOME'], lambda x: getenv(x))
SELECT apply(['HOME'], x -> getenv(x))
SELECT current_setting('secret_directory')
SELECT nextval('x')
SELECT write_log('x')
SELECT sleep_ms(100000)
SELECT pg_sleep(1000)
SELECT max(src) OVER (ORDER BY getenv('HOME')) FROM packets
SELECT * FROM duckdb_settings()
SELECT * FROM duckdb_secrets()
SELECT * FROM duckdb_views()
SELECT * FROM duckdb_databases()
SELECT * FROM duckdb_logs()
SELECT * FROM duckdb_temporary_files()
SELECT * FROM duckdb_external_file_cache()
SELECT * FROM pragma_database_size()
SELECT * FROM which_secret('s3://x', 's3')
SELECT * FROM information_schema.tables
SELECT * FROM pg_catalog.pg_tables
SELECT * FROM sqlite_master
SELECT * FROM duckdb_tables
SELECT * FROM system.information_schema.tables
SELECT * FROM main.packets
SELECT * FROM temp.packets
SELECT * FROM memory.main.packets
SELECT * FROM windrow.main.streams
SELECT * FROM enable_logging(storage = 'file', storage_path = '/tmp/evil')
SELECT * FROM enable_profiling(save_location = '/tmp/evil')
SELECT * FROM checkpoint()
SELECT * FROM register_external_resource('x')
SELECT * FROM python_map_function()
SELECT * FROM arrow_scan(1, 2, 3)
SELECT * FROM pandas_scan(1)
SELECT * FROM seq_scan('packets')
SHOW DATABASES
SHOW memory_limit
SHOW packets
SELECT * FROM (SHOW TABLES)
SELECT * FROM packets AT (VERSION => 1)
SELECT * FROM unknown_stream
SELECT * FROM "packets;DROP"
SELECT * FROM "packets""; DROP VIEW packets; --"
SELECT * FROM "my-stream/../packets"
SELECT * FROM "..".packets
SELECT * FROM '/etc/passwd' [ROWS 5]
SELECT * FROM window('/etc/passwd', INTERVAL 1 MINUTE)
SELECT * FROM window('../packets')
SELECT * FROM read_text [ROWS 5], read_text('/etc/passwd')
EXPLAIN SELECT * FROM read_text('/etc/passwd')
EXPLAIN ANALYZE SELECT * FROM read_text('/etc/passwd')
