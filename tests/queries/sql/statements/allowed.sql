SELECT * FROM packets
SELECT 1
VALUES (1, 'a')
TABLE packets
FROM packets SELECT src ORDER BY ALL LIMIT 3
DESCRIBE packets
DESCRIBE SELECT * FROM packets [ROWS 5]
SUMMARIZE packets
FROM windrow.streams
WITH a AS (FROM packets), b AS NOT MATERIALIZED (FROM a) SELECT * FROM b, leases
WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) FROM r
WITH RECURSIVE r(n) USING KEY (n) AS (SELECT 1 UNION SELECT n + 1 FROM r WHERE n < 5) FROM r
SELECT src, sum(len), list(len ORDER BY ts DESC) FILTER (WHERE len > 1), count(DISTINCT len) FROM packets GROUP BY ALL
SELECT src FROM packets GROUP BY GROUPING SETS ((src), ()) HAVING count(*) > 1
SELECT src FROM packets GROUP BY CUBE (src, len)
SELECT sum(len) OVER (PARTITION BY src ORDER BY ts ROWS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE TIES) FROM packets
SELECT lag(len IGNORE NULLS) OVER w, first_value(len) OVER w FROM packets WINDOW w AS (ORDER BY ts) QUALIFY rank() OVER w < 3
SELECT * EXCLUDE (src) REPLACE (len + 1 AS len) RENAME (ts AS t) FROM packets
SELECT COLUMNS('s.*'), COLUMNS(c -> c LIKE 'l%'), * LIKE 'x%' FROM packets
SELECT DISTINCT ON (src) len FROM packets ORDER BY len DESC NULLS FIRST LIMIT 10% OFFSET 3
FROM packets ASOF JOIN leases ON packets.ts >= leases.ts
FROM packets LEFT JOIN leases USING (src) SEMI JOIN "my-stream" ON true
FROM packets NATURAL JOIN leases CROSS JOIN leases l POSITIONAL JOIN leases m
FROM packets JOIN leases NEAREST 3 BY DISTANCE packets.ts - leases.ts
SELECT * FROM packets UNION ALL BY NAME SELECT * FROM leases INTERSECT SELECT 1, 2 EXCEPT SELECT 3, 4
FROM packets TABLESAMPLE reservoir(50 ROWS) REPEATABLE (100)
PIVOT packets ON src USING sum(len) GROUP BY proto ORDER BY ALL
PIVOT packets ON src || 'x', len USING sum(len), count(*)
PIVOT packets ON src IN (SELECT src FROM leases) USING sum(len)
PIVOT (SELECT * FROM packets [ROWS 5]) ON src IN (1, 2) USING sum(len)
PIVOT packets JOIN leases ON packets.src = leases.src ON packets.src USING count(*)
WITH p AS (PIVOT packets ON src USING sum(len)) FROM p
SELECT * FROM (PIVOT packets ON src USING sum(len)) UNION ALL SELECT * FROM (PIVOT packets ON src USING max(len))
UNPIVOT packets ON COLUMNS(* EXCLUDE src) INTO NAME n VALUE v
FROM packets PIVOT (sum(len) FOR src IN (1, 2))
FROM packets UNPIVOT (v FOR n IN (src, len))
SELECT (SELECT max(src) FROM leases), EXISTS (FROM leases), src IN (SELECT src FROM leases), src > ALL (SELECT 1) FROM packets
SELECT * FROM packets p, LATERAL (SELECT p.src + 1) q, unnest([1, 2]) z(k), range(3), generate_series(1, 2), json_each('{}')
SELECT x[1], x[-1], x[1:2], x['a'], [1, 2, 3][2], 'abc'[1], {'a': 1}.a, MAP {1: 2}[1] FROM (SELECT [1] x)
SELECT list_transform([1], lambda x: x + 1), [y * 2 FOR y IN [1, 2] IF y > 1], list_filter([1], x -> x > 0)
SELECT src::VARCHAR, try_cast(src AS INT), src::DECIMAL(5, 2), src::STRUCT(a INT), 'a'::ENUM('a'), DATE '2020-01-01', INTERVAL 3 DAYS FROM packets
SELECT CASE src WHEN 1 THEN 2 END, coalesce(a, b), a BETWEEN 1 AND 2, a IS DISTINCT FROM b, a COLLATE de, (a, b) = (1, 2) FROM packets
SELECT extract(year FROM ts), ts AT TIME ZONE 'UTC', date_trunc('day', ts), time_bucket(INTERVAL 1 HOUR, ts), now(), current_date FROM packets
SELECT a SIMILAR TO 'b', a ILIKE 'b', a GLOB 'b*', a ~ 'b', regexp_extract(a, 'x', 1), a.upper().lower(), a->>'$.b' FROM packets
SELECT quantile_cont(len, [0.1, 0.9]), mode() WITHIN GROUP (ORDER BY len), arg_max(src, len), approx_top_k(src, 3), histogram(len) FROM packets
SELECT $1, $2 FROM packets WHERE src = $3
SELECT $a FROM packets WHERE src = $b
SELECT random(), uuid(), md5('x'), parse_path('/etc/passwd'), 'read_csv(''/etc/passwd'')', "getenv" FROM packets
SELECT getenv, current_setting, query FROM (SELECT 1 getenv, 2 current_setting, 3 query)
EXPLAIN SELECT * FROM packets
EXPLAIN ANALYZE SELECT * FROM packets [ROWS 5]
