def violations(items, format):
    return []
