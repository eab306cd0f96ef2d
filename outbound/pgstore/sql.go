package pgstore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strings"
)

// table is the name of the table if Config.Table is empty.
const table = "dripfeed_buckets"

// version is that of the functions. Releases whose functions differ work side by side.
const version = "_1"

// names are how the SQL writes the names of a Config.
type names struct{ schema, table, index, inSchema, swap, lock string }

func (c *Config) names() names {
	t := c.Table
	if t == "" {
		t = table
	}
	in := func(name string) string {
		if c.Schema == "" {
			return quote(name)
		}
		return quote(c.Schema) + "." + quote(name)
	}
	n := names{table: in(t), index: quote(t + "_expires"), inSchema: in(t + "_expires"), swap: in(t + "_swap" + version), lock: in(t + "_lock" + version)}
	if c.Schema != "" {
		n.schema = quote(c.Schema)
	}
	return n
}

// sweep returns the SQL that deletes at most so many rows that have expired. It waits for no other
// session: a row that one has locked stays.
func (n names) sweep(most int) string {
	return fmt.Sprintf("DELETE FROM %[1]s WHERE key IN (SELECT b.key FROM %[1]s b WHERE b.expires < now() ORDER BY b.expires LIMIT %[2]d FOR UPDATE SKIP LOCKED)", n.table, most)
}

// quote returns a name as SQL writes it. PostgreSQL has no name with a NUL.
func quote(name string) string {
	return `"` + strings.ReplaceAll(strings.ReplaceAll(name, "\x00", ""), `"`, `""`) + `"`
}

// literal returns a text as SQL writes it.
func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// SQL returns the SQL that makes the table and its functions, for tools that migrate schemas. It
// may run again. Then it returns without waiting for sessions that use the table. Run it in one
// transaction.
func (c Config) SQL() string {
	n := c.names()
	body := "$$" // encloses the functions, and is in no name
	for strings.Contains(n.table, body) {
		body = "$b" + body[1:]
	}
	text := schemaSQL
	if n.schema != "" {
		text = makeSchemaSQL + text
	}
	return strings.NewReplacer("$$", body, "SWEEP", n.sweep(2), "SCHEMA_NAME", n.schema, "SCHEMA_TEXT", literal(n.schema), "TABLE_NAME", n.table,
		"INDEX_NAME", n.index, "INDEX_TEXT", literal(n.inSchema), "SWAP_NAME", n.swap, "LOCK_NAME", n.lock).Replace(text)
}

// SQLDown returns the SQL that undoes SQL. The buckets are gone then.
func (c Config) SQLDown() string {
	n := c.names()
	return "DROP FUNCTION IF EXISTS " + n.swap + ";\nDROP FUNCTION IF EXISTS " + n.lock + ";\nDROP TABLE IF EXISTS " + n.table + ";\n"
}

// Migrate runs Config.SQL, one process at a time, so that all processes may call it when they
// start. It waits for other processes until ctx ends. If a process stops for 5 s during Migrate,
// its Migrate fails, so that other processes continue. The role needs the right to create in the
// schema, and has to own what is there already. If there is no such schema, it needs the right to
// create one.
func Migrate(ctx context.Context, db *sql.DB, c Config) error {
	if db == nil {
		return errNoDB
	}
	if err := migrate(ctx, db, c); err != nil {
		if notURL(err) {
			err = errNotURL
		}
		return fmt.Errorf("pgstore: migrate: %w", err)
	}
	return nil
}

func migrate(ctx context.Context, db *sql.DB, c Config) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	// Without the lock, processes that create the same thing at the same time fail. Its number
	// is any. The server ends the transaction of a process that stops while it has the lock.
	const turn = "SELECT set_config('idle_in_transaction_session_timeout', '5s', true), pg_advisory_xact_lock(7236287415936842597)"
	if _, err := tx.ExecContext(ctx, turn); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, c.SQL()); err != nil {
		return err
	}
	return tx.Commit()
}

// pruned is how many rows Prune deletes in one transaction, at most.
const pruned = 1000

// Prune deletes the rows of idle keys, and returns how many it has deleted. A key is idle if all of
// it has leaked, by the server's clock. The store deletes two such rows for each new key. Call
// Prune, from any process, if a table has had many more keys than it has now.
//
// Prune deletes at most 1,000 rows in one transaction. It continues until none is left or ctx ends.
// It may run next to calls and to other Prunes: it locks only rows that have expired, and leaves
// those that another session has locked. A key without a row begins empty. The server reuses the
// space once autovacuum has seen the table.
func Prune(ctx context.Context, db *sql.DB, c Config) (deleted int64, err error) {
	if db == nil {
		return 0, errNoDB
	}
	for n := int64(pruned); n == pruned; deleted += n {
		result, err := db.ExecContext(ctx, c.names().sweep(pruned))
		if err == nil {
			n, err = result.RowsAffected()
		}
		if err != nil {
			return deleted, cmp.Or(ctx.Err(), (&rows{db: db}).explain(err))
		}
	}
	return deleted, nil
}

// soloSQL swaps one row that is there. It may wait for a lock, and the settings count because they
// are made before the UPDATE asks for it. The clock is read before the wait, so it has less than
// a second left.
const soloSQL = `UPDATE TABLE_NAME b SET token = $3, state = $5, expires =
	CASE WHEN b.expires < clock_timestamp() + $6::bigint * interval '1 microsecond' THEN clock_timestamp() + $6::bigint * interval '2 microseconds' ELSE b.expires END
WHERE b.key = $1 AND b.token = $2 AND set_config('lock_timeout', '1', true) <> ''
	AND set_config('synchronous_commit', CASE WHEN $7::boolean THEN current_setting('synchronous_commit') ELSE 'off' END, true) <> ''
	AND (date_part('epoch', clock_timestamp()) * 1000000)::bigint - $4::bigint BETWEEN 0 AND 990000
RETURNING (date_part('epoch', clock_timestamp()) * 1000000)::bigint`

// makeSchemaSQL makes the schema. CREATE SCHEMA IF NOT EXISTS needs the right to create one even if
// it is there.
const makeSchemaSQL = `DO $$ BEGIN
	IF to_regnamespace(SCHEMA_TEXT) IS NULL THEN
		CREATE SCHEMA SCHEMA_NAME;
	END IF;
END $$;

`

// schemaSQL makes the table and the functions. CREATE INDEX IF NOT EXISTS locks the table even if
// the index is there, and all processes would wait. Times are microseconds of the Unix time.
//
// The clock is clock_timestamp(), read once the row is locked: now() is older than that. Only the
// sweep of expired rows compares with now(), which an index can be read by. expires is indexed, so
// it changes only once in the time for which a row is kept. All other updates are HOT, if two
// versions of the row fit into a page. Rows of up to 8160 bytes are never compressed or stored
// elsewhere, so that an update writes one tuple.
const schemaSQL = `CREATE TABLE IF NOT EXISTS TABLE_NAME (
	key     bytea PRIMARY KEY,
	token   bigint NOT NULL CHECK (token <> 0),
	state   bytea NOT NULL,
	expires timestamptz NOT NULL
) WITH (fillfactor = 70, toast_tuple_target = 8160, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_scale_factor = 0.01);

DO $$ BEGIN
	IF to_regclass(INDEX_TEXT) IS NULL THEN
		CREATE INDEX INDEX_NAME ON TABLE_NAME (expires);
	END IF;
END $$;

CREATE OR REPLACE FUNCTION SWAP_NAME(keys text, olds text, tokens text, times text, states text, keeps text, durable boolean)
RETURNS TABLE (done boolean, busy boolean, token bigint, state bytea, clock bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	k bytea[] := keys;
	o bigint[] := olds;
	n bigint[] := tokens;
	t bigint[] := times;
	s bytea[] := states;
	e bigint[] := keeps;
	keep interval;
BEGIN
	IF NOT durable THEN
		PERFORM set_config('synchronous_commit', 'off', true);
	END IF;
	FOR i IN 1 .. cardinality(k) LOOP
		done := false;
		busy := false;
		IF s[i] IS NOT NULL THEN
			keep := e[i] * interval '1 microsecond';
			IF o[i] = 0 THEN
				SWEEP;
				clock := extract(epoch FROM clock_timestamp()) * 1000000;
				IF clock - t[i] BETWEEN 0 AND 1000000 THEN
					BEGIN
						PERFORM set_config('lock_timeout', '50', true);
						INSERT INTO TABLE_NAME VALUES (k[i], n[i], s[i], clock_timestamp() + 2 * keep) ON CONFLICT DO NOTHING;
						done := FOUND;
					EXCEPTION WHEN lock_not_available THEN -- another session makes the row, and does not commit
						busy := true;
					END;
				END IF;
			ELSE
				PERFORM 1 FROM TABLE_NAME b WHERE b.key = k[i] AND b.token = o[i] FOR NO KEY UPDATE SKIP LOCKED;
				IF FOUND THEN
					clock := extract(epoch FROM clock_timestamp()) * 1000000;
					IF clock - t[i] BETWEEN 0 AND 1000000 THEN
						UPDATE TABLE_NAME b SET token = n[i], state = s[i], expires =
							CASE WHEN b.expires < clock_timestamp() + keep THEN clock_timestamp() + 2 * keep ELSE b.expires END
							WHERE b.key = k[i];
						done := true;
					END IF;
				ELSE
					busy := EXISTS (SELECT FROM TABLE_NAME b WHERE b.key = k[i] AND b.token = o[i]);
				END IF;
			END IF;
		END IF;
		token := n[i];
		state := NULL;
		IF NOT done THEN
			SELECT b.token, CASE WHEN b.token <> o[i] THEN b.state END INTO token, state FROM TABLE_NAME b WHERE b.key = k[i];
			token := coalesce(token, 0);
			clock := extract(epoch FROM clock_timestamp()) * 1000000;
		END IF;
		RETURN NEXT;
	END LOOP;
END $$;

CREATE OR REPLACE FUNCTION LOCK_NAME(locked bytea, patience text, idle text, durable boolean)
RETURNS TABLE (token bigint, state bytea, clock bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
	IF NOT durable THEN
		PERFORM set_config('synchronous_commit', 'off', true);
	END IF;
	PERFORM set_config('lock_timeout', patience, true), set_config('idle_in_transaction_session_timeout', idle, true);
	SELECT b.token, b.state INTO token, state FROM TABLE_NAME b WHERE b.key = locked FOR NO KEY UPDATE;
	token := coalesce(token, 0); -- there is no row
	clock := extract(epoch FROM clock_timestamp()) * 1000000;
	RETURN NEXT;
END $$;
`
