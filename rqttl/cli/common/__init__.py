"""Parts that commands share: settings, parameters, errors, output."""
