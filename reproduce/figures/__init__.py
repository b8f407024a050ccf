"""One file per figure of the paper: its recipes, its drawing, its claims and the verdict on them."""
