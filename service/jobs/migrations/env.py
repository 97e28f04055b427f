"""Alembic's entry: runs the steps on the connection that `service.jobs.database` hands it."""

from alembic import context

# Both databases undo a change of the schema with its transaction; of SQLite, Alembic warnings it.
context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
