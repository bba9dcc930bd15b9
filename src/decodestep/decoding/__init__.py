"""Decoding: from a model's sizes and weights to the logits of any sequences.

- `config`, `layer_weights`, `rope`: sizes, weights and rotary embedding; `latent_form`: grouped queries as latent attention;
- `decoder`: what a decoder does; `step_decoder`: in one native call; `layer_decoder` (`grouped_layer`, `latent_layer`):
  operator by operator;
- `kv_cache`, `page_pool`, `sequence`: keys and values; `forward`, `prefill`: tokens of many sequences through a decoder.
"""
