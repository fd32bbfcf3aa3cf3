\echo Use "CREATE EXTENSION idem_action" to load this file. \quit

SET LOCAL search_path = pg_catalog, pg_temp;

