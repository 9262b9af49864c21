"""Operations of several steps, as generators that yield each step. No I/O here. `steps` has what all of them use."""
