"""From parameters to a token, to be read in this order:

- `params`: what a request may ask (`rules`: what each field may hold; `request_formats`: requests in other formats);
- `build_processors`: parameters to a list of processors;
- `fusion_rules` and `plan`: processors to typed steps, and what runs unfused;
- `sampler` (`token_history`): a batch of rows, each stepped by its plan;
- `text_stream`: tokens to text, cut at stop strings.
"""
