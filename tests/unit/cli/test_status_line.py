"""How far a job is, read from what people and their libraries print."""

from __future__ import annotations

import time

import pytest

from remote_tool.cli.status_line import Pace, _Source, duration, status_text
from remote_tool.jobs.status_values import StatusReader, last_values

PRINTED = {
    "epoch 1 loss 2.0880 seconds 0.16": {"epoch": "1", "loss": "2.0880"},
    "Epoch 3/10, step 120/1000, loss: 0.123, lr: 1e-4": {
        "epoch": "3/10",
        "step": "120/1000",
        "loss": "0.123",
        "lr": "1e-4",
    },
    "Epoch: [3][ 120/5005]\tTime  0.3 ( 0.4)\tLoss 6.9e+00 (6.95e+00)": {
        "epoch": "3",
        "step": "120/5005",
        "loss": "6.9e+00",
    },
    " 12%|\u2588\u258f        | 120/1000 [00:23<02:49,  5.20it/s, loss=0.5]": {
        "step": "120/1000",
        "rate": "5.20it/s",
        "left": "02:49",
        "loss": "0.5",
    },
    "  3%|\u258e | 3/100 [01:02<1:02:03,  1.25s/it]": {"step": "3/100", "rate": "1.25s/it", "left": "1:02:03"},
    "{'loss': 0.8123, 'learning_rate': 4.9e-05, 'epoch': 0.32}": {"loss": "0.8123", "lr": "4.9e-05", "epoch": "0.32"},
    "Epoch 2:  45%|####5 | 45/100 [00:10<00:12, 4.4it/s, v_num=1, train_loss=0.25]": {
        "epoch": "2",
        "step": "45/100",
        "rate": "4.4it/s",
        "left": "00:12",
        "loss": "0.25",
    },
    "iter 500: train loss nan, 12,345 tokens/s": {"step": "500", "loss": "nan", "rate": "12,345 tokens/s"},
    "\x1b[32mstep\x1b[0m 7 of 9": {"step": "7 of 9"},
    "val_loss 0.3 val loss: 0.3 batch_size 32 lossy 3 footstep 3": {},
    "nothing to see": {},
}


@pytest.mark.parametrize("line", PRINTED)
def test_what_people_print_is_understood(line: str) -> None:
    assert StatusReader({}).read([line]) == PRINTED[line]


def test_the_newest_line_counts_and_a_value_stays_until_there_is_another() -> None:
    assert StatusReader({}).read(["epoch 1 loss 3", "epoch 2", "saved"]) == {"epoch": "2", "loss": "3"}


def test_while_there_is_a_bar_no_text_says_which_step_it_is() -> None:
    bar = "train:  70%|#######   | 7/10 [00:01<00:00, 5.1it/s]"
    assert StatusReader({}).read([bar, "step 3: loss 0.5"], has_bar=True)["step"] == "7/10"
    assert StatusReader({}).read(["step 3: loss 0.5"], has_bar=True) == {"loss": "0.5"}
    assert StatusReader({}).read([bar, "step 3: loss 0.5"])["step"] == "3"
    assert StatusReader({"step": r"at (\d+)"}).read(["at 4"], has_bar=True) == {"step": "4"}


def test_a_source_has_a_bar_until_its_line_ends() -> None:
    source = _Source((False, 0, ""), "", Pace(0.0), {"err": b"\r 70%|#  | 7/10 [00:01<00:00]", "out": b"step 3\n"})
    source.lines()
    assert source.has_bar
    source.tails["err"] += b"\n"
    source.lines()
    assert not source.has_bar


def test_patterns_of_the_user_come_beside_the_usual_ones_or_instead() -> None:
    reader = StatusReader({"acc": r"accuracy (\S+)%", "loss": r"cost ([0-9.]+)"})
    values = reader.read(["step 3: Accuracy 97.5%, cost 0.2, loss 9"])
    assert values == {"step": "3", "acc": "97.5", "loss": "0.2"}
    assert status_text(values, Pace(0.0), 0.0) == "step 3  loss 0.2  acc 97.5"


def test_a_pattern_that_takes_long_is_asked_once() -> None:
    reader = StatusReader({"slow": r"(a*a*a*)b"})
    line = "step 3 " + "a" * 190
    began = time.thread_time()
    for _ in range(100):
        assert reader.read([line]) == {"step": "3"}
    # Each time it is asked takes about half a second.
    assert time.thread_time() - began < 5


def test_only_the_end_of_a_long_line_is_read() -> None:
    assert StatusReader({}).read(["step 1 " + "x" * 1_000_000 + " loss 2"]) == {"loss": "2"}


def seen(pace: Pace, *values: tuple[float, str, str]) -> Pace:
    for now, epoch, step in values:
        pace.note({name: text for name, text in (("epoch", epoch), ("step", step)) if text}, now)
    return pace


def test_the_time_left_comes_from_the_speed_that_was_seen() -> None:
    pace = seen(Pace(0.0), (10.0, "", "100/1000"), (20.0, "", "200/1000"))
    assert (pace.rate, pace.seconds_left(20.0), pace.seconds_left(25.0)) == (10.0, 80.0, 75.0)
    assert status_text({"step": "200/1000"}, pace, 20.0) == "step 200/1000  10 steps/s  1m 20s left"


def test_with_epochs_all_of_them_are_counted() -> None:
    pace = seen(Pace(0.0), (10.0, "1/3", "90/100"), (20.0, "2/3", "10/100"))
    assert (pace.done, pace.total, pace.seconds_left(20.0)) == (110.0, 300.0, 95.0)
    from_zero = seen(Pace(0.0), (5.0, "0/2", "0/10"), (10.0, "0/2", "10/10"), (20.0, "1/2", "5/10"))
    assert (from_zero.done, from_zero.total) == (15.0, 20.0)


def test_lines_from_before_do_not_count_for_the_speed() -> None:
    pace = seen(Pace(0.0), (0.1, "", "1/1000"), (0.2, "", "500/1000"), (5.0, "", "501/1000"))
    assert pace.seconds_left(5.0) is None
    assert seen(pace, (15.0, "", "511/1000")).seconds_left(15.0) == 489.0


def test_a_new_count_starts_from_zero() -> None:
    pace = seen(Pace(0.0), (10.0, "", "90/100"), (20.0, "", "100/100"), (21.0, "", "1/50"))
    assert pace.rate is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59, "59s"), (169, "2m 49s"), (3780, "1h 03m"), (266_400, "3d 02h")]
)
def test_a_duration_is_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_values_of_a_list_come_from_whole_lines_only() -> None:
    cut = "ss 9.5\nstep 3/10 loss 0.25\nstep 4/10 loss 0."
    assert last_values([cut], {}, has_ended=False) == ("step=3/10", "loss=0.25")
    assert last_values([cut], {}, has_ended=True) == ("step=4/10", "loss=0.")
    assert last_values(["accuracy 0.5\n", "accuracy 0.7\n"], {"accuracy": "accuracy ([0-9.]+)"}, has_ended=False) == (
        "accuracy=0.7",
    )
    assert last_values([], {}, has_ended=True) == ()
