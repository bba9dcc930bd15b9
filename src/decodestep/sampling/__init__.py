"""From parameters to a token, to be read in this order:

- `params`: what a request may ask (`rules`: what each field may hold; `spellings`, `request_formats`: requests of others);
- `build_processors`: parameters to a list of processors;
- `fusion_rules` and `plan`: processors to typed steps, and what runs unfused;
- `trace` (`causes`, `thresholds`, `trace_html`): what each step of a plan does to a row, as values;
- `sampler` (`row`, `row_processors`, `token_history`): a batch of rows, each stepped by its plan;
- `text_stream`: tokens to text, cut at stop strings.
"""
