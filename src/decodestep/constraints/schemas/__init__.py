"""JSON schemas as grammars whose every beginning can be ended.

- `document`: a schema's parts by their place, and what references name;
- `shapes`: values of one type; `meeting`: those of two shapes at once;
- `reading` (`negation`): a schema as the shapes that its values have;
- `families`: which shapes have a finite text at all, what patterns allow;
- `writing` (`members`, `elements`, `leaves`): shapes as rules of llguidance's kind of Lark, in the form of json.dumps.
"""
