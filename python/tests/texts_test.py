"""Numbers of things, and texts of users, in texts."""

from armillary._texts import count_of, excerpt

import armillary


def test_numbers_of_things():
    assert [count_of(n, "rank") for n in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
    assert [count_of(n, "query", "queries") for n in (1, 2)] == ["1 query", "2 queries"]
    one = armillary.plan("ring", world=1, seq=8)
    assert repr(one) == "<armillary.Plan ring forward: 1 rank, 1 op>"
    assert "1 rank, 1 step, " in one._repr_html_()
    assert str(armillary.verify("ring", world=1, seq=8)).startswith("ring: exact on 1 rank; ")


def test_texts_of_users_are_one_printable_line():
    assert excerpt("a" * 255) == "a" * 255
    assert excerpt("a\n\x1b[31m\udcff\u00e9") == "a\\n\\x1b[31m\\udcff\u00e9"
    assert excerpt("b" + "a" * 999 + "c") == f"b{'a' * 127}.. (746 characters left out) ..{'a' * 126}c"
