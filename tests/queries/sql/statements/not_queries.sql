COPY packets TO '/tmp/evil.csv'
COPY (SELECT 1) TO '/tmp/evil.parquet' (FORMAT parquet)
COPY packets FROM '/etc/passwd'
COPY (PIVOT packets ON src USING sum(len)) TO '/tmp/evil.csv'
ATTACH '/tmp/evil.db'
ATTACH ':memory:' AS evil
DETACH memory
USE temp
INSTALL httpfs
LOAD httpfs
FORCE INSTALL httpfs FROM 'http://localhost'
PRAGMA database_list
PRAGMA enable_profiling
PRAGMA threads=1
SET threads = 1
SET GLOBAL enable_external_access = true
SET VARIABLE x = 1
RESET threads
CALL pragma_version()
EXPORT DATABASE '/tmp/evil'
IMPORT DATABASE '/tmp/evil'
CREATE TABLE evil AS SELECT 1
CREATE TABLE evil AS PIVOT packets ON src USING sum(len)
CREATE OR REPLACE TEMP VIEW packets AS SELECT 1
CREATE MACRO evil() AS TABLE SELECT 1
CREATE SECRET evil (TYPE s3)
CREATE TYPE evil AS ENUM ('a')
CREATE SEQUENCE evil
INSERT INTO packets VALUES (1)
INSERT INTO packets PIVOT packets ON src USING sum(len)
UPDATE packets SET src = 1
DELETE FROM packets
MERGE INTO packets USING leases ON true WHEN MATCHED THEN DELETE
TRUNCATE packets
DROP VIEW packets
ALTER TABLE packets ADD COLUMN evil INT
VACUUM
CHECKPOINT
ANALYZE
BEGIN
COMMIT
ROLLBACK
PREPARE evil AS SELECT 1
EXECUTE evil
DEALLOCATE evil
EXPLAIN EXPLAIN SELECT 1
EXPLAIN COPY packets TO '/tmp/evil.csv'
EXPLAIN ANALYZE CREATE TABLE evil AS SELECT 1
COMMENT ON TABLE packets IS 'evil'
