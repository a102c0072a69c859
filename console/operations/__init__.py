"""Every acting request as a row: asked, taken, ended, or honestly unknown."""
