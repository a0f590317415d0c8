SELECT * FROM/**/read_text/**/('/etc/passwd')
SELECT * FROM -- packets\n read_text -- ok\n ('/etc/passwd')
SELECT * FROM packets /* [ROWS 5] */ , /* */ '/etc/passwd'
SELECT * FROM packets [ROWS 5 /* ] */ ], '/etc/passwd'
SELECT * FROM packets [ROWS 5 -- ]\n], read_text('/etc/passwd')
SELECT '/*', content FROM read_text('/etc/passwd') --*/
SELECT * FROM\u00a0read_text\u00a0('/etc/passwd')
SELECT * FROM packets [ROWS\u00a05],\u00a0read_text('/etc/passwd')
SELECT E'\'' , content FROM read_text('/etc/passwd') --'
SELECT $a$ $$ $a$, content FROM read_text('/etc/passwd') -- $$
SELECT * FROM packets [WINDOW 5 MINUTES] UNION ALL SELECT * FROM "read_text" ( '/etc/passwd' )
