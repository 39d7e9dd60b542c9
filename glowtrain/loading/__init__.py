"""Models from files, of which no more is read than is asked for where earlier processes have kept code of theirs."""
