"""Models: from a published config.json to an `Architecture`, and the catalogue of known ones."""
