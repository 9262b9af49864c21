"""Hostile texts of senders that try to act on the terminal of a reader, or to break the tool: more than 200.

`TEXTS` can be bodies, ids, headers, content types and descriptions; `BYTES` are no valid text; `PACKED` are bytes that
are announced as msgpack.
"""

from __future__ import annotations

import struct

import msgpack

_ESC, _CSI, _OSC, _ST, _BEL = "\x1b", "\x9b", "\x1b]", "\x1b\\", "\x07"

_ESCAPES = (
    *(f"{_ESC}[{code}" for code in (
        "2J", "3J", "H", "31m", "8m", "0;0H", "99999A", "1000000000b", "?25l", "?1049h", "?1000h", "?2004h", "6n",
        "c",
        ">c", "0x", "20l", "21t", "18t", "9;1t", "4h", "?5h", "!p", "1;1r", "5i", "4i", "0\"q", "38;2;0;0;0m",
    )),
    *(f"{_ESC}{code}" for code in ("c", "7", "8", "D", "M", "=", "#8", "(0", "%@", "n", "N~", "Z", "\\", "[", "")),
    *(f"{_OSC}{code}" for code in (
        f"0;title{_BEL}", f"2;title{_ST}", f"52;c;cm0gLXJmIC8={_BEL}", f"52;c;?{_ST}", f"52;p;AAAA{_ST}",
        f"8;;http://evil.example{_ST}click{_OSC}8;;{_ST}", f"8;id=1;file:///etc/passwd{_BEL}x{_OSC}8;;{_BEL}",
        f"4;1;rgb:00/00/00{_ST}", f"10;?{_BEL}", f"11;#000000{_BEL}", f"104{_BEL}", f"9;note{_BEL}",
        f"777;notify;a;b{_BEL}",
        f"1337;File=name=eA==;inline=1:AAAA{_BEL}", f"7;file://h/tmp{_BEL}", f"133;C{_BEL}", f"50;?{_BEL}",
        "0;unterminated",
    )),
    f"{_ESC}P$q\"p{_ST}", f"{_ESC}P+q544e{_ST}", f"{_ESC}Pq#0;2;0;0;0~-{_ST}", f"{_ESC}P1000p",
    f"{_ESC}_Ga=T;AAAA{_ST}",
    f"{_ESC}_apc{_ST}", f"{_ESC}^pm{_ST}", f"{_ESC}Xsos{_ST}",
    f"{_CSI}2J", f"{_CSI}31m", "\x9d52;c;AAAA\x9c", "\x9d0;t\x07", "\x90q\x9c", "\x9fGAAAA\x9c", "\x9e\x9c",
    "\x98\x9c", "\x85next",
    "\x84\x8d\x8e\x8f", "".join(map(chr, range(0x80, 0xA0))),
)  # fmt: skip

_CONTROLS = (
    "".join(map(chr, range(0x20))), "\x7f", "\x00", "a\x00b", "ok\rFAKE", "ok\r\nrqttl: all is well", "\n",
    "\n\n\nrqttl: done\n",
    "secret\b\b\b\b\b\bpublic", "\x0e\x0f", "\x05", "\x11\x13", "\t" * 50, "\v\f", "a\x1a", "\x04", "\x03",
    "\x16\x1c\x1d\x1e\x1f",
)  # fmt: skip

_UNSEEN = (
    "\u202egpj.exe", "\u202dabc\u202c", "\u2066a\u2067b\u2068c\u2069", "\u200e\u200f\u061c",
    "a\u200bb\u200cc\u200dd", "\ufeff",
    "\u2060\u2061\u2062\u2063\u2064", "\u00ad", "\u2028line\u2029para", "\u180e", "\u3164", "\u115f\u1160",
    "\uffa0", "\u034f",
    "\ufe00\ufe01", "".join(chr(0xE0100 + ord(c)) for c in "smuggled"),
    "".join(chr(0xE0000 + ord(c)) for c in "smuggled"),
    "\U000e0001\U000e007f", "\u206a\u206b\u206c\u206d\u206e\u206f", "\ufff9a\ufffab\ufffb", "\u2800" * 50,
    "\u00a0\u2007\u202f\u3000",
    "\ue000\uf8ff", "\U000f0000\U0010fffd", "\ufffe\uffff", "\U0001ffff", "\u0378\u0530",
    "\U0001f1e6\u200d\U0001f1e7",
    "\u1d173\U0001d173", "\u17b4\u17b5", "\u180b\u180c\u180d",
)  # fmt: skip

_SHAPES = (
    "Z" + "\u0300\u0301\u0489" * 300, "\u0300" * 100, "a\u20dd\u20de\u20df\u20e0" * 40, "\u0e01" + "\u0e49" * 200,
    "漢" * 5_000,
    "👨\u200d👩\u200d👧\u200d👦" * 50, "\ufdfd" * 100, "𒐫" * 100,
    "\uff57\uff49\uff44\uff45", "שלום عالم", "\u0628\u0651" * 50, "ﷺ" * 20, "\u3000" * 30,
    " " * 5_000, "",
)  # fmt: skip

_MARKUP = (
    "[/x]", "[/]", "[bold]not[/bold]", "[link=http://evil.example]x[/link]", "[@click=app.quit]x[/]",
    "[red on white blink]x", "[[", "\\[b]",
    ":smile: :bomb:", "[/bold][/bold]", "{style}", "%s %n %d", "{0.__class__}", "<script>alert(1)</script>",
    "${jndi:ldap://x}", "$(reboot)",
    "`reboot`", "'; rm -rf /; '", '","x":1}', '"}\n{"id":"fake"}', "\\u001b[31m", "\\x1b[31m",
    "../../../etc/passwd", "/etc/passwd", "-rf",
    "--yes", "~root", "|reboot", "=cmd|'/c calc'!A1", "x" * 1_000_000,
)  # fmt: skip

TEXTS: tuple[str, ...] = (*_ESCAPES, *_CONTROLS, *_UNSEEN, *_SHAPES, *_MARKUP)

BYTES: tuple[bytes, ...] = (
    b"\x9b31m", b"\x9d52;c;AAAA\x9c", b"\x90q\x9c", b"\x84\x85\x8d", bytes(range(256)), b"\xff\xfe\x00",
    b"\xfe\xff\x00\x1b",
    b"\xc0\x9b31m", b"\xc1\x9b", b"\xe0\x80\x9b", b"\xf0\x80\x80\x9b", b"\xc0\x80", b"\xed\xa0\x80",
    b"\xed\xb0\x80", b"\xed\xa0\xbd\xed\xb8\x80",
    b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xfc\x84\x80\x80\x80\x80", b"\xc2", b"\xe2\x82",
    b"\xf0\x9f\x98", b"\x80" * 100,
    b"\xff" * 1_000_000, b"\x1b" * 1_000_000, b"\n" * 100_000, b"\xe2\x80\xae" * 1_000, b"\xf0\x9f\x98\x80" * 1_000,
    b"a" * 1_999 + "漢".encode(),
)  # fmt: skip

_DEEP = 900

PACKED: tuple[bytes, ...] = (
    msgpack.packb(float("nan")), msgpack.packb([float("inf"), -float("inf")]),
    msgpack.packb({"a": {"b": float("nan")}}),
    msgpack.packb({float("nan"): 1}), msgpack.packb(2**64 - 1), msgpack.packb(-(2**63)),
    msgpack.packb({"\x1b[31m": "\u202e"}),
    msgpack.packb({b"\xff\x1b": b"\x9b"}), msgpack.packb({None: 1, True: 2, 1.5: 3}), msgpack.packb({1: "a",
    "1": "b"}),
    b"\x82\xa1a\x01\xa1a\x02", b"\x81\x91\x01\x02", b"\x81\x80\x01", msgpack.packb(msgpack.ExtType(5, b"\x1b[31m")),
    msgpack.packb(msgpack.Timestamp(0)), msgpack.packb(msgpack.Timestamp(2**34)), b"\xd5\xff\x1b\x1b",
    b"\xc7\x0c\xff" + b"\xff" * 12,
    b"\x91" * _DEEP + b"\x01", b"\x81\xa1a" * _DEEP + b"\x01", b"\x91" * 100_000, b"\x91" * 101 + b"\x01",
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xffx", b"\xc6\x7f\xff\xff\xff", b"\xc1", b"", b"\xa3\xed\xa0\x80", b"\xa2\xc2\x9b",
    b"\xc4\x03\x1b[m", b"\x01\x02",
    msgpack.packb("x" * 1_000_000), msgpack.packb(list(range(100_000))),
    msgpack.packb({str(i): "\x1b" for i in range(10_000)}),
    b"\xcb" + struct.pack(">Q", 0x7FF0000000000001), msgpack.packb(5e-324), msgpack.packb("\u2028\u2029</script>"),
    msgpack.packb("\x7f\x80\x9f"),
)  # fmt: skip
