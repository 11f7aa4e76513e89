"""The picture of fairmean-recess: its points are those of the stored runs."""

from __future__ import annotations

from paper import recess_picture
from paper.recess import FILE, FIRST, read


def test_a_point_for_every_client():
    rows = read(FILE)
    for method, _ in recess_picture.SHOWN:
        regular, poisoned = recess_picture.points(rows, method)
        assert (len(regular), len(poisoned)) == (80, 20)
    assert max(recess_picture.points(rows, FIRST)[0]) < 0.1 < min(recess_picture.points(rows, FIRST)[1])


def test_it_is_drawn(tmp_path):
    recess_picture.draw(read(FILE), tmp_path / "recess" / "idea.png")
    assert (tmp_path / "recess" / "idea.png").read_bytes().startswith(b"\x89PNG")
