COPY (SELECT 1) TO '{outside}/evil.csv'
COPY (SELECT 1) TO '{inside}/../../evil.csv'
ATTACH '{outside}/evil.db'
EXPORT DATABASE '{outside}/evil'
SELECT * FROM read_text('{outside}/secret.txt')
SELECT * FROM read_csv('{outside}/secret.txt')
SELECT * FROM '{outside}/secret.csv'
SELECT * FROM read_text('{inside}/link.txt')
SELECT * FROM read_text('{inside}/../../outside/secret.txt')
SELECT * FROM glob('{outside}/*')
SELECT * FROM read_text('file://{outside}/secret.txt')
SELECT * FROM read_csv('http://127.0.0.1:9/x.csv')
INSTALL httpfs
LOAD httpfs
LOAD '{outside}/evil.duckdb_extension'
SET enable_external_access = true
SET lock_configuration = false
SET allowed_directories = ['/']
SET temp_directory = '{outside}'
SET threads = 1
RESET enable_external_access
PRAGMA enable_profiling
SET profiling_output = '{outside}/evil.json'
SET log_query_path = '{outside}/evil.log'
SET secret_directory = '{outside}'
CALL enable_logging(storage = 'file', storage_path = '{outside}/evil')
CREATE PERSISTENT SECRET evil (TYPE http)
SELECT getenv('HOME')
SELECT * FROM os
SELECT * FROM STREAMS
