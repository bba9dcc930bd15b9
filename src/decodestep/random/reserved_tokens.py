"""Token values for streams of randomness other than the draw of a token. No vocabulary reaches them."""

XTC_COIN = 0xFFFFFFFF  # decides whether the XTC filter acts on a row at a position
SAMPLE_LOW = 0xFFFFFFFE  # `sample_seed`: the low 32 bits of the seed of a prompt's sample, whose number is the position
SAMPLE_HIGH = 0xFFFFFFFD  # and the rest
