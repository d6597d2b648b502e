import { Body, Controller, type ExecutionContext, Injectable, Module, Param, Post } from '@nestjs/common';
import { InjectRepository, TypeOrmModule } from '@nestjs/typeorm';
import { AcceptFencing, FencedWrite, fencingHeaders, InjectFencedRepository, Leased } from 'nestjs-fencing';
import { FencedRepositoriesModule, type FencedRepository, GenerationColumn } from 'nestjs-fencing/typeorm';
import { Column, Entity, PrimaryColumn, type Repository } from 'typeorm';

// #region row-guard
@Entity()
export class Device {
  @PrimaryColumn('text') id!: string;
  @Column('text') firmware!: string;
  @GenerationColumn({ trigger: false }) generation!: number;
}

@Injectable()
export class DevicesService {
  constructor(@InjectFencedRepository(Device) private readonly devices: FencedRepository<Device>) {}

  @Leased('device:{0}')
  async upgrade(id: string, firmware: string): Promise<void> {
    await this.devices.update(id, { firmware }); // UPDATE … SET …, generation = $g WHERE … AND generation <= $g
  }
}

@Module({
  imports: [TypeOrmModule.forFeature([Device]), FencedRepositoriesModule.forFeature([Device])],
  providers: [DevicesService],
})
export class DevicesModule {}
// #endregion

@Entity()
export class Shipment {
  @PrimaryColumn('text') id!: string;
  @Column('text') address!: string;
}

// #region downstream-send
@Injectable()
export class OrdersService {
  @Leased('order:{0}')
  async ship(id: string): Promise<void> {
    await fetch(`${process.env.SHIPPING_URL}/shipments/${id}`, {
      method: 'POST',
      headers: { ...fencingHeaders(), Authorization: `Bearer ${process.env.SHIPPING_TOKEN}` },
    });
  }
}
// #endregion

// #region downstream-accept
/** Who may speak for a lease: here, whoever has the token, and only for orders. */
function trust(context: ExecutionContext, { key }: { key: string }): boolean {
  const { headers } = context.switchToHttp().getRequest<{ headers: Record<string, string | undefined> }>();
  return headers.authorization === `Bearer ${process.env.SHIPPING_TOKEN}` && key.startsWith('order:');
}

@Injectable()
export class ShipmentsService {
  constructor(@InjectRepository(Shipment) private readonly shipments: Repository<Shipment>) {}

  /** Refused if this service has accepted a newer owner of the order. */
  @FencedWrite()
  async create(id: string, address: string): Promise<void> {
    await this.shipments.save({ id, address }); // plain TypeORM
  }
}

@Controller('shipments')
export class ShipmentsController {
  constructor(private readonly shipments: ShipmentsService) {}

  @Post(':id')
  @AcceptFencing({ trust })
  create(@Param('id') id: string, @Body() body: { address: string }): Promise<void> {
    return this.shipments.create(id, body.address);
  }
}
// #endregion
