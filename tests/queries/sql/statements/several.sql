SELECT 1; SELECT 2
SELECT 1;COPY packets TO '/tmp/evil.csv'
SELECT 1; -- nothing ;\nCOPY packets TO '/tmp/evil.csv'
PIVOT packets ON src USING sum(len); SELECT 1
PIVOT packets ON src USING sum(len); COPY packets TO '/tmp/evil.csv'
SELECT ';'; ATTACH '/tmp/evil.db'
SELECT $$;$$; ATTACH '/tmp/evil.db'
SELECT E'\';'; ATTACH '/tmp/evil.db' --'
/* ; */ SELECT 1 /* /* */ ; */ ; SET threads = 1
