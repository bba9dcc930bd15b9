"""Constraints: texts of a JSON schema, a regular expression or a grammar.

- `processor`: which tokens may come next in a row;
- `grammar`: a language in llguidance's form; `vocabulary`: the tokens in that form;
- `json_schema` (`schemas`, `json_form`): schemas as grammars; `gbnf`: llama.cpp's grammars;
- `trial` (`worker`): costly ones are tried out in a process of their own.
"""
