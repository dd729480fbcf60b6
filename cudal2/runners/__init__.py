"""Who answers a configuration with a measurement: a GPU or a recording."""
