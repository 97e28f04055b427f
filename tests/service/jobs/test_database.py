"""Schemas of other versions, and several processes that open a database at once."""

import multiprocessing
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text

from service.jobs import migrations
from service.jobs.database import StateError, read_url
from service.jobs.queue import JobStore, KeyConflict
from service.jobs.table import jobs
from service.settings import Settings
from tests.service.jobs.postgres import emptied

_FOLDER = Path(__file__).parent / "files"
OLD = (_FOLDER / "state-v1.sql").read_text()


@pytest.fixture
def old(tmp_path: Path) -> str:
    """A file as the service of before the migrations left it."""
    with sqlite3.connect(tmp_path / "assay.sqlite3") as db:
        db.executescript(OLD)
    db.close()
    return f"sqlite:///{tmp_path / 'assay.sqlite3'}"


def test_an_old_table_is_brought_up_to_date_with_every_row(old: str) -> None:
    with sqlite3.connect(old.removeprefix("sqlite:///")) as db:
        db.row_factory = sqlite3.Row
        before = db.execute("SELECT * FROM jobs ORDER BY seq DESC").fetchall()
    db.close()
    store = JobStore(old)
    kept = store.get_all([row["id"] for row in before])
    assert len(kept) == len(before) == 6
    for row in before:
        job = kept[row["id"]]
        for name in ("seq", "status", "samples", "cost", "created", "finished", "done", "deleted"):
            assert getattr(job, name) == row[name], name
        assert (job.owner, job.priority_name, job.ran) == ("", "normal", 0)
    by_status = {row["status"]: row for row in before if row["deleted"] is None}
    queued = store.claim("new")
    assert queued is not None and queued.id == by_status["queued"]["id"]
    running = by_status["running"]
    assert store.heartbeat(running["id"], running["owner"])
    done = kept[by_status["succeeded"]["id"]]
    assert done.result is not None and done.result["models"]
    with pytest.raises(KeyConflict):
        store.find_key("", "a-key", "another fingerprint")
    assert store.page(model="fashion-elliptical")[0]
    store.close()


def test_the_service_of_before_refuses_what_this_one_wrote(old: str) -> None:
    JobStore(old).close()
    with sqlite3.connect(old.removeprefix("sqlite:///")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
    db.close()


def test_new_rows_are_numbered_after_the_old_ones(old: str) -> None:
    from tests.service.jobs.test_queue import submit

    store = JobStore(old)
    last = store.page()[0][0].seq
    job = store.get(submit(store))
    assert job is not None and job.seq > last
    store.close()


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "assay.sqlite3") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StateError, match="schema version 0099"):
        JobStore(f"sqlite:///{tmp_path / 'assay.sqlite3'}")


def test_a_newer_schema_is_refused_and_left_alone(database: str) -> None:
    JobStore(database).close()
    engine = create_engine(read_url(database))
    try:
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '0099'"))
        with pytest.raises(StateError, match="schema version 0099.*up to version 0002"):
            JobStore(database)
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '0002'"))
    finally:
        engine.dispose()


def test_the_table_in_the_code_is_the_one_that_the_steps_make(database: str) -> None:
    JobStore(database).close()
    engine = create_engine(read_url(database))
    found = {column["name"]: column for column in inspect(engine).get_columns("evaluations")}
    engine.dispose()
    assert list(found) != [] and set(found) == {column.name for column in jobs.columns}
    for column in jobs.columns:
        assert found[column.name]["nullable"] == column.nullable, column.name


def test_the_newest_step_is_the_one_that_is_looked_for() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    script = ScriptDirectory.from_config(config)
    assert script.get_current_head() == migrations.HEAD
    assert {step.revision for step in script.walk_revisions()} == set(migrations.VERSIONS)


def _open(address: str, start: Any, outcome: Any) -> None:
    start.wait()
    try:
        store = JobStore(address)
        outcome.put(store.waiting())
        store.close()
    except Exception as error:
        outcome.put(repr(error))


@pytest.mark.parametrize("kind", ["old", "postgresql_server"])
def test_processes_that_start_at_once_upgrade_once(
    request: pytest.FixtureRequest, kind: str
) -> None:
    address = request.getfixturevalue(kind)
    expected = 1 if kind == "old" else 0
    if kind == "postgresql_server":
        emptied(address)
    context = multiprocessing.get_context("spawn")
    start, outcome = context.Event(), context.Queue()
    openers = [context.Process(target=_open, args=(address, start, outcome)) for _ in range(3)]
    for opener in openers:
        opener.start()
    start.set()
    assert [outcome.get(timeout=60) for _ in openers] == [expected] * 3
    for opener in openers:
        opener.join(timeout=60)
        opener.close()


def test_a_state_may_lie_at_an_odd_path(tmp_path: Path) -> None:
    folder = tmp_path / "a b%20c#é?x=1"
    JobStore.open(Settings(state=folder)).close()
    assert (folder / "assay.sqlite3").is_file()
