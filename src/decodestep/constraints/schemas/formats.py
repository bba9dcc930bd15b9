"""Formats of strings, as patterns: for strings and for names of members alike."""

from __future__ import annotations

# No 29 February but in leap years; years start at 1. Leap seconds are the last ones of a day in UTC, where its distance is of
# quarters of an hour, as those of all places are.
_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_FOURTH = "(0[48]|[2468][048]|[13579][26])"  # multiples of four that are not zero
_DAY = "((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
_DATE = f"({_YEAR}-{_DAY}|([0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)"
_HOUR = "([01][0-9]|2[0-3])"
_FRACTION = r"(\.[0-9]{1,18})?"
_LEAP = "|".join(
    f"{(hour - (minute == 0)) % 24:02}:{(minute - 1) % 60:02}:60{_FRACTION}"
    rf"(\+{hour:02}:{minute:02}|-{(24 - hour - (minute > 0)) % 24:02}:{-minute % 60:02}{'|[Zz]' * (hour == minute == 0)})"
    for minute in (0, 15, 30, 45)
    for hour in range(24)
)
_TIME = rf"({_HOUR}:[0-5][0-9]:[0-5][0-9]{_FRACTION}([Zz]|[+-]{_HOUR}:[0-5][0-9])|{_LEAP})"
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
_LABEL = "[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_DOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_ATOM = "[-A-Za-z0-9!#$%&'*+/=?^_`{|}~]+"
_QUOTED = r'"([ !#-\[\]-~]|\\[ -~])*"'
_CLOCK = "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)"  # a unit may not be left out between two others
_CALENDAR = "([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)"
# Of those that JSON Schema defines; all others but UNSUPPORTED are annotations.
PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[Tt]{_TIME}$",
    "duration": f"^P([0-9]+W|{_CALENDAR}({_CLOCK})?|{_CLOCK})$",
    "email": rf"^({_ATOM}(\.{_ATOM})*|{_QUOTED})@({_DOMAIN}|\[(({_BYTE}\.){{3}}{_BYTE}|IPv6:({_IPV6}))\])$",
    "hostname": f"^{_DOMAIN}$",
    "ipv4": rf"^({_BYTE}\.){{3}}{_BYTE}$",
    "ipv6": f"^({_IPV6})$",
    "uuid": "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$",
    "uri": f"^{_ABSOLUTE}{_END}$",
    "uri-reference": f"^({_ABSOLUTE}|{_RELATIVE}){_END}$",
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": f"^(0|[1-9][0-9]*)(#|{_POINTER})$",
}
LONGEST = {"hostname": 253}  # in characters
UNSUPPORTED = ("idn-email", "idn-hostname", "iri", "iri-reference", "uri-template", "regex")
