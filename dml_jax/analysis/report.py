def write(*a): pass
def table(*a): pass
