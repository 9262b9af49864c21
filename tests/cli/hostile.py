"""Hostile texts of senders that try to act on the terminal of a reader, or to break the tool.

`TEXTS` can be bodies, ids, headers, content types and descriptions; `BYTES` are no valid text; `PACKED` are bytes that
are announced as msgpack.
"""

from __future__ import annotations

import struct

import msgpack

_ESC, _CSI, _OSC, _ST, _BEL = "\x1b", "\x9b", "\x1b]", "\x1b\\", "\x07"

#: What moves, colours, hides, resizes, answers, renames, links or prints on a terminal.
_ESCAPES = (
    *(f"{_ESC}[{code}" for code in ("2J", "31m", "8m", "1000000000b", "?1049h", "6n", "21t", "4h", "!p", "5i", '0"q')),
    *(f"{_ESC}{code}" for code in ("c", "7", "#8", "(0", "%@", "N~", "\\", "[", "")),
    f"{_OSC}0;title{_BEL}",
    f"{_OSC}52;c;cm0gLXJmIC8={_BEL}",
    f"{_OSC}52;c;?{_ST}",
    f"{_OSC}8;;http://evil.example{_ST}click{_OSC}8;;{_ST}",
    f"{_OSC}1337;File=name=eA==;inline=1:AAAA{_BEL}",
    f"{_OSC}777;notify;a;b{_BEL}",
    f"{_OSC}0;unterminated",
    f'{_ESC}P$q"p{_ST}',
    f"{_ESC}Pq#0;2;0;0;0~-{_ST}",
    f"{_ESC}_Ga=T;AAAA{_ST}",
    f"{_ESC}^pm{_ST}",
    f"{_ESC}Xsos{_ST}",
    f"{_CSI}31m",
    "\x9d52;c;AAAA\x9c",
    "\x90q\x9c",
    "\x85next",
    "".join(map(chr, range(0x80, 0xA0))),
)

_CONTROLS = (
    "".join(map(chr, range(0x20))),
    "\x7f",
    "a\x00b",
    "ok\r\nrqttl: all is well",
    "\n",
    "\n\n\nrqttl: done\n",
    "secret\b\b\b\b\b\bpublic",
    "\x0e\x0f",
    "\t" * 50,
    "a\x1a",
    "\x03",
)

#: What cannot be seen, or lets a text look as another.
_UNSEEN = (
    "\u202egpj.exe",
    "\u2066a\u2067b\u2068c\u2069",
    "a\u200bb\u200cc\u200dd",
    "\ufeff",
    "\u2060\u2061\u2062\u2063\u2064",
    "\u2028line\u2029para",
    "\u3164",
    "\u034f",
    "\ufe00\ufe01",
    "".join(chr(0xE0100 + ord(c)) for c in "smuggled"),
    "".join(chr(0xE0000 + ord(c)) for c in "smuggled"),
    "\ufff9a\ufffab\ufffb",
    "\u00a0\u2007\u202f\u3000",
    "\ue000\uf8ff",
    "\ufffe\uffff",
    "\u0378\u0530",
    "\U0001f1e6\u200d\U0001f1e7",
    "\u180b\u180c\u180d",
)

_SHAPES = (
    "Z" + "\u0300\u0301\u0489" * 300,
    "\u0300" * 100,
    "\u0e01" + "\u0e49" * 200,
    "漢" * 5_000,
    "👨\u200d👩\u200d👧\u200d👦" * 50,
    "𒐫" * 100,
    "שלום عالم",
    " " * 5_000,
    "",
)

#: What rich, a format, a shell, a spreadsheet or a reader of JSON might take for its own.
_MARKUP = (
    "[/x]",
    "[link=http://evil.example]x[/link]",
    "[red on white blink]x",
    "\\[b]",
    ":smile: :bomb:",
    "%s %n %d",
    "{0.__class__}",
    "<script>alert(1)</script>",
    "$(reboot)",
    "'; rm -rf /; '",
    '"}\n{"id":"fake"}',
    "\\u001b[31m",
    "../../../etc/passwd",
    "-rf",
    "--yes",
    "=cmd|'/c calc'!A1",
    "x" * 1_000_000,
)

TEXTS: tuple[str, ...] = (*_ESCAPES, *_CONTROLS, *_UNSEEN, *_SHAPES, *_MARKUP)

BYTES: tuple[bytes, ...] = (
    b"\x9b31m",
    b"\x9d52;c;AAAA\x9c",
    bytes(range(256)),
    b"\xff\xfe\x00",
    b"\xc0\x9b31m",
    b"\xe0\x80\x9b",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xf8\x88\x80\x80\x80",
    b"\xe2\x82",
    b"\xff" * 1_000_000,
    b"\n" * 100_000,
    b"a" * 1_999 + "漢".encode(),
)

_DEEP = 900

PACKED: tuple[bytes, ...] = (
    msgpack.packb({"a": {"b": float("nan")}}),
    msgpack.packb({float("nan"): 1}),
    msgpack.packb(2**64 - 1),
    msgpack.packb({"\x1b[31m": "\u202e"}),
    msgpack.packb({b"\xff\x1b": b"\x9b"}),
    msgpack.packb({None: 1, True: 2, 1.5: 3}),
    msgpack.packb({1: "a", "1": "b"}),
    b"\x82\xa1a\x01\xa1a\x02",
    b"\x81\x91\x01\x02",
    msgpack.packb(msgpack.ExtType(5, b"\x1b[31m")),
    msgpack.packb(msgpack.Timestamp(2**34)),
    b"\xc7\x0c\xff" + b"\xff" * 12,
    b"\x91" * _DEEP + b"\x01",
    b"\x81\xa1a" * _DEEP + b"\x01",
    b"\x91" * 100_000,
    b"\xdd\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xffx",
    b"\xc1",
    b"",
    b"\xa3\xed\xa0\x80",
    b"\x01\x02",
    msgpack.packb(list(range(100_000))),
    b"\xcb" + struct.pack(">Q", 0x7FF0000000000001),
    msgpack.packb("\u2028\u2029</script>"),
)
