"""muster: plan the training of LLaMA-3-class models before anyone has the chips."""
