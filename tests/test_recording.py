"""Recordings: the Parquet file alone is enough to rebuild what was measured and where it was not."""

import dataclasses

import numpy as np
import pyarrow.parquet as pq
import pytest
from fabricated_recording import FINGERPRINT, SHAPES, SPACE, made_up_recording, made_up_row

from cudal2.errors import EnvironmentProblemError, RecordError
from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.records.recording import STATUS_CODES, Recording, read_records
from cudal2.records.shards import RecordLog
from cudal2.settings import Limit
from cudal2.space.space import SearchSpace

PROBLEM = Problem.parse(SHAPES[1])


@pytest.fixture(scope="module")
def published(tiny_recording, tmp_path_factory):
    path = tmp_path_factory.mktemp("recording") / "tiny.parquet"
    Recording.publish(tiny_recording.measurements(), path, [FINGERPRINT], tiny_recording.space)
    return path


def test_the_file_rebuilds_the_space_and_the_cells(tiny_recording, published):
    loaded = Recording.load(published)
    assert loaded.space.digest == tiny_recording.space.digest
    assert loaded.axes == tiny_recording.axes
    assert loaded.fingerprint == FINGERPRINT
    assert loaded.problems == tuple(sorted(Problem.parse(mnk) for mnk in SHAPES))
    np.testing.assert_array_equal(loaded.cells.pairs(), tiny_recording.cells.pairs())
    np.testing.assert_array_equal(loaded.times_us, tiny_recording.times_us)


def test_every_row_reads_back_as_it_was_measured(published):
    space = SearchSpace(settings=SPACE)
    recording = Recording.load(published)
    for config in list(space.enumerate(PROBLEM))[::7]:
        flat = space.flat(config)
        row, wanted = recording.measurement(PROBLEM, flat), made_up_row(PROBLEM, config)
        assert (row.config, row.status, row.reason) == (wanted.config, wanted.status, wanted.reason)
        assert row.times_us == pytest.approx(wanted.times_us, rel=1e-6)
        assert row.ref_times_us == pytest.approx(wanted.ref_times_us, rel=1e-6)
        assert (row.compile_s, row.bench_s, row.utc) == (wanted.compile_s, wanted.bench_s, wanted.utc)


def test_arrays_agree_with_the_rows(tiny_recording):
    index = tiny_recording.problem_index(PROBLEM)
    flats = tiny_recording.recorded(PROBLEM)
    for flat in flats[::5]:
        row, cell = tiny_recording.measurement(PROBLEM, int(flat)), tiny_recording.cells[index, flat]
        assert tiny_recording.space.from_flat(int(flat)) == row.config
        assert tiny_recording.statuses[cell] == STATUS_CODES[row.status]
        assert tiny_recording.costs_s[cell] == 1.0
        if row.ok:
            assert tiny_recording.times_us[cell] == pytest.approx(row.median_us, rel=1e-6)
        else:
            assert np.isnan(tiny_recording.times_us[cell])


def test_what_was_not_recorded_is_empty(tiny_recording):
    empty = int(np.setdiff1d(np.arange(tiny_recording.space.total), tiny_recording.recorded(PROBLEM))[0])
    assert tiny_recording.cells[tiny_recording.problem_index(PROBLEM), empty] == -1
    assert tiny_recording.measurement(PROBLEM, empty) is None
    assert empty not in tiny_recording.times(PROBLEM)
    assert np.isnan(tiny_recording.times_us[-1])
    assert tiny_recording.statuses[-1] == 0


def test_completeness_is_counted(tiny_recording):
    assert all(tiny_recording.missing(problem) == 0 for problem in tiny_recording.problems)
    rows = [row for row in tiny_recording.measurements() if row.config is None or row.config.stages == 4]
    partial = Recording.from_measurements(rows, [FINGERPRINT], tiny_recording.space)
    stages_2 = sum(config.stages == 2 for config in partial.space.enumerate(PROBLEM))
    assert partial.missing(PROBLEM) == stages_2 > 0


def test_limits_of_the_space_are_kept(tmp_path):
    limited = dataclasses.replace(
        SPACE, limits=(Limit({"tile_m": (64,)}, {"stages": (4,)}, flops_above=1e8),), name="limited"
    )
    recording = made_up_recording(SHAPES[:1], limited)
    path = tmp_path / "limited.parquet"
    Recording.publish(recording.measurements(), path, [FINGERPRINT], recording.space)
    loaded = Recording.load(path)
    assert loaded.space.digest == SearchSpace(settings=limited).digest != SearchSpace(settings=SPACE).digest
    assert loaded.missing(loaded.problems[0]) == 0


def test_without_a_space_the_values_that_occur_stand_for_it(tiny_recording):
    rows = [row for row in tiny_recording.measurements() if row.config is None or row.config.tile_n != 32]
    recording = Recording.from_measurements(rows, [FINGERPRINT])
    assert recording.axes["tile_n"] == (64, 128)
    assert recording.axes["split_k"] == (1, 2, 4)


def test_the_file_does_not_depend_on_the_order_of_arrival(tiny_recording, published, tmp_path):
    rows = list(tiny_recording.measurements())
    Recording.publish(rows[::-1], tmp_path / "again.parquet", [FINGERPRINT], tiny_recording.space)
    assert (tmp_path / "again.parquet").read_bytes() == published.read_bytes()


def test_columns_are_typed_and_axes_are_columns(published):
    schema = pq.read_schema(published)
    assert str(schema.field("times_us").type.value_type) == "float"
    assert str(schema.field("tile_m").type) == "int32"
    assert str(schema.field("persistent").type) == "bool"
    assert {"m", "n", "k", "acc", "layout", "status", "reason", "schedule", "split_k"} <= set(schema.names)


def test_shards_load_as_a_recording(tiny_recording, tmp_path):
    with RecordLog(tmp_path, FINGERPRINT) as log:
        log.append(tiny_recording.measurements())
    recording = Recording.load(tmp_path)
    assert recording.fingerprint == FINGERPRINT
    assert recording.reference_us(PROBLEM) == pytest.approx(tiny_recording.reference_us(PROBLEM))


def test_the_reference_is_that_of_the_same_rounds_or_of_the_baseline_row(tiny_recording):
    wanted = tiny_recording.reference_us(PROBLEM)
    bare = [dataclasses.replace(row, ref_times_us=()) for row in tiny_recording.measurements()]
    baseline = Recording.from_measurements(bare, [FINGERPRINT]).reference_us(PROBLEM)
    assert baseline == pytest.approx(tiny_recording.baselines(PROBLEM)["cublaslt_auto"].median_us)
    assert wanted == pytest.approx(baseline, rel=0.01)
    assert wanted != baseline
    without = Recording.from_measurements([row for row in bare if row.config], [FINGERPRINT])
    with pytest.raises(RecordError, match="no cublaslt_auto reference"):
        without.reference_us(PROBLEM)


def test_the_pdl_setting_with_more_rows_is_replayed_unless_one_is_named(tiny_recording, caplog):
    rows = [row for row in tiny_recording.measurements() if row.problem == PROBLEM]
    faster = [
        dataclasses.replace(row, pdl=True, times_us=tuple(time_us / 2 for time_us in row.times_us))
        for row in rows
        if row.config is not None
    ]
    with caplog.at_level("INFO", "cudal2"):
        assert Recording.from_measurements(rows + faster, [FINGERPRINT]).pdl is True
        assert Recording.from_measurements(rows + faster[:-1], [FINGERPRINT]).pdl is False
    assert "replaying those without" in caplog.text
    with_pdl, without = (Recording.from_measurements(rows + faster, [FINGERPRINT], pdl=pdl) for pdl in (True, False))
    np.testing.assert_allclose(with_pdl.times_us * 2, without.times_us)


def test_a_mode_without_rows_is_refused(tiny_recording):
    with pytest.raises(RecordError, match="mode 'server'"):
        Recording.from_measurements(tiny_recording.measurements(), [FINGERPRINT], mode="server")


def test_an_unknown_problem_names_what_there_is(tiny_recording):
    with pytest.raises(RecordError, match=r"7_7_7 \(fp32 tn\) was not recorded; .* 6 problems of fp32 tn"):
        tiny_recording.problem_index(Problem(7, 7, 7))


def test_nothing_to_publish_is_an_error(tmp_path):
    baseline = Measurement(PROBLEM, "cublas", None, Status.CORRECT, times_us=(1.0,))
    with pytest.raises(RecordError, match="nothing to publish"):
        Recording.publish([baseline], tmp_path / "x.parquet", [FINGERPRINT])


@pytest.mark.parametrize("content", [b"", b"PAR1 but not really PAR1"])
def test_a_corrupt_file_is_one_clear_line(tmp_path, content):
    path = tmp_path / "bad.parquet"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=r"bad\.parquet: not a readable Parquet file") as caught:
        Recording.load(path)
    assert "\n" not in str(caught.value)


def test_a_truncated_file_is_refused(published, tmp_path):
    path = tmp_path / "half.parquet"
    path.write_bytes(published.read_bytes()[:-100])
    with pytest.raises(RecordError, match="not a readable Parquet file"):
        Recording.load(path)


def test_a_missing_file_and_foreign_parquet_are_refused(published, tmp_path):
    with pytest.raises(RecordError, match="no such recording"):
        Recording.load(tmp_path / "none.parquet")
    foreign = tmp_path / "foreign.parquet"
    pq.write_table(pq.read_table(published).replace_schema_metadata({}), foreign)
    with pytest.raises(RecordError, match="not a cudal2 recording"):
        Recording.load(foreign)


def test_another_schema_is_refused(published, tmp_path):
    table = pq.read_table(published)
    metadata = {b"cudal2": table.schema.metadata[b"cudal2"].replace(b'"schema": 1', b'"schema": 7')}
    path = tmp_path / "future.parquet"
    pq.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(RecordError, match="schema 7"):
        Recording.load(path)


def test_an_unwritable_target_is_one_clear_line_and_leaves_nothing(tiny_recording, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblemError, match="cannot write"):
        Recording.publish(tiny_recording.measurements(), tmp_path / "file" / "x.parquet", [FINGERPRINT])


def test_publishing_leaves_no_partial_files(published):
    assert [path.name for path in published.parent.iterdir()] == ["tiny.parquet"]


def test_ten_thousand_rows_stay_small(tiny_recording, published):
    rows = pq.read_metadata(published).num_rows
    assert published.stat().st_size / rows * 10_000 < 8 * 2**20


def test_records_read_the_same_from_shards_and_from_a_published_file(tiny_recording, published, tmp_path):
    with RecordLog(tmp_path, FINGERPRINT) as log:
        log.append(tiny_recording.measurements())
    shards, table = read_records(tmp_path), read_records(published)
    assert table.measurements == shards.measurements == tuple(tiny_recording.measurements())
    assert table.fingerprints == shards.fingerprints == (FINGERPRINT,)


def test_how_times_split_over_processes_survives_publishing(tiny_recording, tmp_path):
    row = next(row for row in tiny_recording.measurements() if row.config and len(row.times_us) > 2)
    split = dataclasses.replace(row, process_rounds=(1, len(row.times_us) - 1))
    Recording.publish([split], tmp_path / "one.parquet", tiny_recording.metadata.fingerprints)
    assert read_records(tmp_path / "one.parquet").measurements == (split,)
