"""Formats of strings, as what llguidance enforces."""

from __future__ import annotations

from typing import Any

# llguidance's own patterns allow 29 February in every year and seconds of 60, which parsers refuse. Years start at 1, as there.
_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_FOURTH = "(0[48]|[2468][048]|[13579][26])"  # multiples of four that are not zero
_DAY = "((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
_DATE = f"({_YEAR}-{_DAY}|([0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)"
_HOUR = "([01][0-9]|2[0-3])"
_TIME = rf"{_HOUR}:[0-5][0-9]:[0-5][0-9](\.[0-9]{{1,9}})?([Zz]|[+-]{_HOUR}:[0-5][0-9])"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HEX = "[0-9A-Fa-f]{1,4}"
_LAST = rf"({_HEX}:{_HEX}|({_BYTE}\.){{3}}{_BYTE})"  # the last 32 bits
_IPV6 = "|".join(
    [f"({_HEX}:){{6}}{_LAST}"]
    + [f"({_HEX}(:{_HEX}){{0,{n - 1}}})?::({_HEX}:){{{5 - n}}}{_LAST}" if n else f"::({_HEX}:){{5}}{_LAST}" for n in range(6)]
    + [f"({_HEX}(:{_HEX}){{0,5}})?::{_HEX}", f"({_HEX}(:{_HEX}){{0,6}})?::"]
)
_PERCENT = "%[0-9A-Fa-f]{2}"
_PLAIN = "-A-Za-z0-9._~!$&'()*+,;="  # what stands in any part of a URI
_SEGMENT = f"([{_PLAIN}:@]|{_PERCENT})"
_FIRST = f"([{_PLAIN}@]|{_PERCENT})+"  # of a relative path, without a colon, which would end a scheme
_HOST = rf"(\[({_IPV6})\]|\[[vV][0-9A-Fa-f]+\.[{_PLAIN}:]+\]|([{_PLAIN}]|{_PERCENT})*)"
_AUTHORITY = rf"//(([{_PLAIN}:]|{_PERCENT})*@)?{_HOST}(:[0-9]*)?(/{_SEGMENT}*)*"
_RELATIVE = f"({_AUTHORITY}|/({_SEGMENT}+(/{_SEGMENT}*)*)?|{_FIRST}(/{_SEGMENT}*)*)?"
_ABSOLUTE = f"[A-Za-z][-A-Za-z0-9+.]*:({_AUTHORITY}|/?({_SEGMENT}+(/{_SEGMENT}*)*)?)"
_END = rf"(\?([{_PLAIN}:@/?]|{_PERCENT})*)?(#([{_PLAIN}:@/?]|{_PERCENT})*)?"
_POINTER = r"(/([^~/]|~[01])*)*"
PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[Tt]{_TIME}$",
    "ipv6": f"^({_IPV6})$",
    "uri": f"^{_ABSOLUTE}{_END}$",
    "uri-reference": f"^({_ABSOLUTE}|{_RELATIVE}){_END}$",
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": f"^(0|[1-9][0-9]*)(#|{_POINTER})$",
}
_NATIVE = ("duration", "email", "hostname", "ipv4", "uuid")  # which llguidance has right
# Of those that JSON Schema defines; all others are annotations.
UNSUPPORTED = ("idn-email", "idn-hostname", "iri", "iri-reference", "uri-template", "regex")
ENFORCED = (*PATTERNS, *_NATIVE)
_LONGEST_HOSTNAME = 253  # which llguidance's pattern leaves out


def format_schema(name: str) -> dict[str, Any]:
    """The keywords of an enforced format's strings, as llguidance has them."""
    if name in PATTERNS:
        return {"pattern": PATTERNS[name]}
    return {"format": name, **({"maxLength": _LONGEST_HOSTNAME} if name == "hostname" else {})}
