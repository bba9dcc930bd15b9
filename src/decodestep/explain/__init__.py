"""Shows what the steps of a plan do to a model's distributions: recorded, then printed in a terminal or rendered as a page.

- `record`: runs a model and keeps a `Trace` of every token; `spelling`: tokens as readable text;
- `data`: a recording as plain values, small enough for a page; `omitted`: a summary of the tokens that the page omits;
- `descriptions`: a description of every processor in two sentences and a formula;
- `page` (`page.html`, `page.css`, `*.js`): one self-contained HTML file;
- `stages`: a trace as plain values for a table; `terminal`: that table, with bars and colours.
"""
