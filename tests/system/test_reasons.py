"""Reasons why replies are not counted, as lines of the log."""

from strategies.channel import grouped


def test_each_reason_is_one_line_in_the_order_of_the_first_with_at_most_three_names():
    assert grouped([]) == []
    reasons = [("d1", "late"), ("d2", "no key"), ("d3", "late"), ("d4", "wrong")]
    assert grouped(reasons) == ["2 nodes (d1, d3): late", "d2: no key", "d4: wrong"]
    for count, shown in ((3, "d0, d1, d2"), (4, "d0, d1, d2, ..."), (10_000, "d0, d1, d2, ...")):
        reasons = [(f"d{number}", "late") for number in range(count)]
        assert grouped(reasons) == [f"{count} nodes ({shown}): late"]
