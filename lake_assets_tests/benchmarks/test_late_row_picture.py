"""The picture of a late row has a bar for each station that a side reached, as long as the row took to it."""

from __future__ import annotations

from xml.etree import ElementTree

from benchmarks.late_row_picture import LEFT, NAMES, WIDTH, drawn

SVG = "{http://www.w3.org/2000/svg}"


def test_bars_follow_each_other_in_proportion() -> None:
    sides = {
        "before": {"committed": 0.0, "noticed": 4000.0, "queued": 10_000.0},
        "now <&": {"committed": 0.0, "noticed": 1000.0, "step": 2000.0},
    }
    picture = ElementTree.fromstring(drawn(sides))
    _, *rest = picture.findall(f"{SVG}rect")
    bars = rest[len(sides) :]
    assert [(float(bar.attrib["x"]), float(bar.attrib["width"])) for bar in bars] == [
        (LEFT, WIDTH * 0.4),
        (LEFT, WIDTH * 0.1),
        (LEFT + WIDTH * 0.4, WIDTH * 0.6),
        (LEFT + WIDTH * 0.1, WIDTH * 0.1),
    ]
    texts = [text.text for text in picture.findall(f"{SVG}text")]
    assert {"before", "now <&", *NAMES.values()} <= set(texts)
    assert [text for text in texts if text and "(+" in text] == [
        "4.0 s (+4.0)",
        "1.0 s (+1.0)",
        "10.0 s (+6.0)",
        "2.0 s (+1.0)",
    ]
