"""The schema of the table, and several processes that open a database at once."""

from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text

from service.jobs import database as steps
from service.jobs.database import StateError, read_url
from service.jobs.queue import JobStore
from service.jobs.table import jobs
from service.settings import Settings


def test_a_newer_schema_is_refused_and_left_alone(database: str) -> None:
    JobStore(database).close()
    engine = create_engine(read_url(database))
    try:
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '0099'"))
        with pytest.raises(StateError, match="schema version 0099.*up to version 0001"):
            JobStore(database)
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    finally:
        engine.dispose()


def test_the_table_in_the_code_is_the_one_that_the_steps_make(database: str) -> None:
    JobStore(database).close()
    engine = create_engine(read_url(database))
    found = {column["name"] for column in inspect(engine).get_columns("evaluations")}
    engine.dispose()
    assert found == {column.name for column in jobs.columns}


def test_the_newest_step_is_the_one_that_is_looked_for() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(steps.__file__).parent / "migrations"))
    script = ScriptDirectory.from_config(config)
    assert script.get_current_head() == steps.HEAD
    assert [step.revision for step in script.walk_revisions()] == [steps.HEAD]


def test_a_state_may_lie_at_an_odd_path(tmp_path: Path) -> None:
    folder = tmp_path / "a b%20c#é?x=1"
    JobStore.open(Settings(state=folder)).close()
    assert (folder / "assay.sqlite3").is_file()
