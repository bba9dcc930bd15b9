"""What the steps of a plan do to a real distribution, to look at: recorded from a model, then shown in a terminal or on a page.

- `record`: runs a model and keeps a `Trace` of every token; `spelling`: tokens as text that can be read;
- `data`: a recording as plain values, small enough for a page; `tail`: what a page needs of the tokens that it does not show;
- `words`: what every processor does, in two sentences and a formula;
- `page` (`page.html`, `page.css`, `*.js`): one HTML file that needs nothing else; `terminal`: bars and colours in a terminal.
"""
