import pytest

from flowtempo.errors import UserError
from flowtempo.runtime import Runtime
from flowtempo.training import ObjectiveConfig, train
from flowtempo.training.lock import LOCK, FolderLock, is_busy


def test_a_run_folder_is_for_one_process(make_config, tmp_path):
    run = tmp_path / "run"
    told = []

    def second(fraction):
        assert is_busy(run)
        for resume in (False, True):
            with pytest.raises(UserError, match="is in use by another process") as caught:
                train(make_config(steps=1), run, resume=resume)
            told.append(caught.value)

    train(make_config(steps=1), run, progress=second)
    assert len(told) == 2
    assert not (run / LOCK).exists()


def test_a_new_folder_that_another_process_has_just_taken(make_config, tmp_path):
    with (
        FolderLock(tmp_path / "run", Runtime()),
        pytest.raises(UserError, match="is in use by another process"),
    ):
        train(make_config(steps=1), tmp_path / "run")
    assert not is_busy(tmp_path / "run")


def test_the_lock_file_of_a_killed_process_is_nothing(make_config, tmp_path):
    (tmp_path / LOCK).touch()
    assert train(make_config(steps=1), tmp_path).step == 1


def test_skipped_steps_are_counted_over_all_calls(make_config, tmp_path):
    bad = ObjectiveConfig(direction=1e39)
    assert train(make_config(steps=2, objective=bad), tmp_path / "run").skipped == 2
    assert train(make_config(steps=3, objective=bad), tmp_path / "run", resume=True).skipped == 3
    assert train(make_config(steps=1), tmp_path / "good").skipped == 0
