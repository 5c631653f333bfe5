from services.local.collector.app import main

main()
