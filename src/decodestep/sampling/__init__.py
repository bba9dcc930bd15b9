"""From parameters to a token. Modules in reading order:

- `params`: the parameters of a request (`rules`: legal values; `keyword_fields`: from keywords to fields; `spellings`,
  `request_formats`: other libraries' names and requests);
- `param_steps`: what each field does to scores, in order; `parts`: that as typed steps, or as what the core looks up;
- `fusion_rules`: the processors of a caller's list as parts; `stage`: one of either; `plan`: all of a row, in order;
- `row` (`token_history`, `text_stream`, `packed_logprobs`): one sequence, which steps and reports;
- `row_factory` (`row_processors`): makes rows; `sampler` (`device_step`): a list of rows that step in one call;
- `trace` (`causes`, `thresholds`, `distribution`, `trace_html`): what each stage of a plan does to a row, as values.
"""
