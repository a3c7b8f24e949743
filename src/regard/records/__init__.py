"""Plain values that travel: what was answered, where the model looked, what the beam tried.

Nothing here needs torch.
"""
