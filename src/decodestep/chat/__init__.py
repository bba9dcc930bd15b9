"""Conversations: what `generate`, `Engine` and the server share about messages, tools and answers.

- `template`: a model's chat template (`message_form`), rendered by a `template_process` (`template_worker`,
  `template_renderer`) as `traced_text`;
- `tools` (`tool_grammar`, `tool_trial`): function calls, described to the model and constrained;
- `tool_formats`: how models write calls, by `tool_call_format`: `tool_json_formats`, `tool_named_formats`, `tool_tags`,
  `tool_gemma`, `tool_python`, `tool_harmony`; their values: `tool_notation`, `tool_json`, `tool_values`;
  `partial_json`: of one that was cut;
- `function_schemas`, `function_calls`: Python functions as tools;
- `user_mark`: where the last message of a user begins;
- `answer_format` (`answer_reader`, `reasoning`, `text_feed`): how reasoning, text and calls are read from an answer.
"""

from decodestep.chat.function_calls import call_function
from decodestep.chat.function_schemas import describe_function

__all__ = ["call_function", "describe_function"]
