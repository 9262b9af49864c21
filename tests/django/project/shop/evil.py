from shop.tasks import note

note("evil is imported")
