"""Conversations: what `generate`, `Engine` and the server share about messages, tools and answers.

- `template`: a model's chat template (`message_form`), rendered by a `template_process` (`template_worker`,
  `template_renderer`) as `traced_text`;
- `tools` (`tool_formats`, `tool_tags`, `tool_call_format`, `tool_grammar`, `tool_json`, `tool_values`, `tool_trial`): function
  calls, described to the model and constrained;
- `answer_format` (`answer_reader`, `reasoning`, `text_feed`): how reasoning, text and calls are read from an answer.
"""
