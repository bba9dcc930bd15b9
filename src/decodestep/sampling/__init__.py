"""From parameters to a token. Modules in reading order:

- `params`: the parameters of a request (`rules`: legal values; `spellings`, `request_formats`: other libraries' requests);
- `param_steps`: parameters to a list of processors;
- `fusion_rules` and `plan` (`stage`): processors to typed steps, and those that run unfused;
- `jump`: tokens that a constraint alone decides;
- `trace` (`causes`, `thresholds`, `distribution`, `trace_html`): what each step of a plan does to a row, as values;
- `sampler` (`row`, `row_processors`, `token_history`, `packed_logprobs`, `device_step`): rows, each stepped by its plan;
- `text_stream`: tokens to text, cut at stop strings.
"""
