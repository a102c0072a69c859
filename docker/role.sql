-- Runs once, as superuser, when the volume `postgres` is empty. The console's role owns its database and nothing else:
-- through SQL a superuser reads and writes the server's files and starts programs.
\getenv password WEIR_DB_PASSWORD
CREATE ROLE weir LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD :'password';
CREATE DATABASE weir OWNER weir;
