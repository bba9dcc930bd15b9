"""The form in which constrained rows write JSON: that of json.dumps."""

# The keyword of a schema that changes how llguidance reads it, and with "lenient" what it enforces.
OPTIONS = "x-guidance"
# With free whitespace a row at a high temperature might write nothing else. Where further properties are allowed, llguidance
# takes "\u0061" for one and not for "a": so there are no escapes with u.
JSON_FORM = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": 'nrbtf\\"',
}
